"""Entry of the `fl-dp` command; it imports nothing at first, so that Ctrl-C ends in one line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends in one line at any moment, even during an import."""
    try:
        from .app import app

        app()
    except ImportError as error:
        from fl_dp.protocol.flower_versions import FlowerChanged

        from .extras import with_its_extra

        text = with_its_extra(error)
        if text == str(error) and not isinstance(error, FlowerChanged):
            raise
        sys.stderr.write(f"error: {text}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("error: stopped\n")
        raise SystemExit(130) from None


def __getattr__(name: str) -> object:
    # Not imported above: if that import is interrupted, `main` can still print one line.
    if name != "app":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from .app import app

    return app


if __name__ == "__main__":
    main()
