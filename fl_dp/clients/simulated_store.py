"""Keys and marks of a simulated node, in its `Context`: no disk, and nobody is protected there."""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from fl_dp.secagg import Identity, Mark
from fl_dp.secagg.store import stale

_RECORD = "fl-dp-secagg"
_IDENTITY = "identity"


class SimulatedStore:
    """A `NodeStore` in a node's state, which Flower keeps for the length of a run."""

    def __init__(self, state: RecordDict) -> None:
        """Use a node's state."""
        if _RECORD not in state:
            state[_RECORD] = ConfigRecord()
        self._record: ConfigRecord = state[_RECORD]  # type: ignore[assignment]  # put there above

    def get(self, run: int | None, key: str) -> bytes | None:
        """Return what was put under a key of a run."""
        value = self._record.get(f"{run} {key}")
        return value if isinstance(value, bytes) else None

    def put(self, run: int | None, key: str, value: bytes) -> None:
        """Keep a value under a key."""
        self._record[f"{run} {key}"] = value

    def mark(self, run: int, role: str, number: int, mark: Mark) -> None:
        """Keep a mark, unless one of the role has such a number or a larger one.

        Raises:
            Refused: `stale`, if so.
        """
        if number <= self.last(run, role):
            raise stale(number)
        # Only the last one is asked for again, and a state travels with every message.
        self._record[f"{run} last {role}"] = [number.to_bytes(8, "big"), mark.terms, mark.view]

    def marked(self, run: int, role: str, number: int) -> Mark | None:
        """Return the mark of a role for a number, if it is the last."""
        last = self._last(run, role)
        return Mark(last[1], last[2]) if last is not None and last[0] == number else None

    def last(self, run: int, role: str) -> int:
        """Return the highest marked number of a role, 0 if there is none."""
        last = self._last(run, role)
        return 0 if last is None else last[0]

    def forget(self, run: int) -> None:
        """Delete everything of a run."""
        for key in [key for key in self._record if key.startswith(f"{run} ")]:
            del self._record[key]

    def expire(self, days: float) -> None:
        """Do nothing: a state does not outlive its run."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _last(self, run: int, role: str) -> tuple[int, bytes, bytes] | None:
        value = self._record.get(f"{run} last {role}")
        if not isinstance(value, list):
            return None
        number, terms, view = value
        assert isinstance(number, bytes) and isinstance(terms, bytes) and isinstance(view, bytes)
        return int.from_bytes(number, "big"), terms, view


def simulated_identity(state: RecordDict) -> Identity:
    """Return a simulated node's identity, made when it is first asked for."""
    store = SimulatedStore(state)
    pem = store.get(None, _IDENTITY)
    if pem is None:
        pem = Identity.generate().to_pem()
        store.put(None, _IDENTITY, pem)
    return Identity.from_pem(pem)
