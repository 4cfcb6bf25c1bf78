"""Entry of the `fl-dp` command; it imports nothing yet, so that Ctrl-C at once is one line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C at any moment, also while something is imported, is one line."""
    try:
        from .app import app

        app()
    except ImportError as error:
        from fl_dp.protocol.flower_versions import FlowerChanged

        from .extras import with_its_extra

        said = with_its_extra(error)
        if said == str(error) and not isinstance(error, FlowerChanged):
            raise
        sys.stderr.write(f"error: {said}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("error: stopped\n")
        raise SystemExit(130) from None


def __getattr__(name: str) -> object:
    # Not imported above: `main` says so in one line if that is interrupted.
    if name != "app":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from .app import app

    return app


if __name__ == "__main__":
    main()
