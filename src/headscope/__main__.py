"""Where the `headscope` command and `python -m headscope` begin."""

import gc
import os
from _signal import SIGINT, default_int_handler, getsignal, signal  # type: ignore[import-not-found]  # imports nothing

INTERRUPTED = 130


def leave(number: int, frame: object) -> None:
    """End the process at Ctrl-C while modules are imported: nothing has begun that would need an end."""
    os._exit(INTERRUPTED)


def main() -> None:
    """Run the command line. Starting makes much and drops nothing, so collecting garbage meanwhile would only cost."""
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, leave)
    gc.set_threshold(100_000, 20, 20)
    from headscope.cli import main as run

    run()


if __name__ == "__main__":
    main()
