"""A cut-off for somebody else's code: work that is not done by then is left behind."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from copy import deepcopy
from threading import Thread
from typing import TypeVar

from flwr.app import Context

_Result = TypeVar("_Result")


def done_within(seconds: float, work: Callable[[Context], _Result], context: Context) -> _Result:
    """Return the result of work that is done in time.

    Work that is not goes on in a thread, with a context of its own, and ends with the process: a
    real SuperNode has one for each message.

    Args:
        seconds: What it has.
        work: Gets the context; what it leaves in its state is kept if it is done in time.
        context: The node's.

    Raises:
        TimeoutError: If it is not done in time.
    """
    result: Future[_Result] = Future()
    # What is left behind must not write into what Flower sends on meanwhile.
    apart = Context(
        run_id=context.run_id,
        node_id=context.node_id,
        node_config=context.node_config,
        state=deepcopy(context.state),
        run_config=context.run_config,
        series_id=context.series_id,
    )

    def do() -> None:
        try:
            result.set_result(work(apart))
        except BaseException as failure:  # told to the one who waits, an exit, too
            result.set_exception(failure)

    # No executor: it would wait for its threads when the process ends.
    Thread(target=do, daemon=True).start()
    try:
        done = result.result(timeout=max(0.0, seconds))
    except TimeoutError:
        if result.done():
            raise  # the work's own
        raise TimeoutError(f"not done after {seconds:.3g} s") from None
    context.state = apart.state
    return done
