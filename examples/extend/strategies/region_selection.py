"""Who takes part: as many hospitals from each region, in turn."""

from collections import Counter
from collections.abc import Sequence

from flwr.app import Message, RecordDict

from fl_dp.accounting import VisibleSampling
from fl_dp.strategies import Draw, Selection, Unit


class RegionSelection(Selection):
    """The same number of units from each region; who had the fewest turns comes first.

    Privacy: regions are public and turns follow from them and from coins, so choosing costs
    nothing. Who takes part is seen, so nothing is amplified: each unit pays in full for each round
    that it takes part in, and a participation cap bounds how many those are.
    """

    def __init__(self, regions: Sequence[str], per_region: int, participation_cap: int) -> None:
        """Draw `per_region` units from each of the regions, each unit in so many rounds at most."""
        self.sampling = VisibleSampling(
            cohort=len(regions) * per_region, participation_cap=participation_cap
        )
        self.regions = tuple(regions)
        self.per_region = per_region
        self._region: dict[Unit, str] = {}
        self._turns: Counter[Unit] = Counter()

    def select(self, draw: Draw) -> list[Unit]:
        """Return the cohort; fewer than planned where a region has no more units left."""
        self._ask_where_they_are(draw)
        coins = dict(zip(draw.roster, draw.rng.uniforms(len(draw.roster)), strict=True))
        queue = sorted(draw.roster, key=lambda unit: (self._turns[unit], coins[unit]))
        cohort: list[Unit] = []
        for region in self.regions:
            here = [unit for unit in queue if self._region.get(unit) == region]
            cohort += here[: self.per_region]
        self._turns.update(cohort)
        return cohort

    def _ask_where_they_are(self, draw: Draw) -> None:
        """Ask units that were not met before; whoever is silent is asked again next time."""
        new = {unit.node: unit for unit in draw.roster if unit not in self._region}
        content = RecordDict({"config": draw.config})
        for reply in draw.ask(
            Message(content, dst_node_id=node, message_type="query.region") for node in new
        ):
            if not reply.has_error():
                unit = new.get(reply.metadata.src_node_id)
                if unit is None:
                    continue
                self._region[unit] = str(reply.content["address"]["region"])
