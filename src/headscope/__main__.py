"""Entry point of the `headscope` command and of `python -m headscope`."""

import gc
import os
from _signal import SIGINT, default_int_handler, getsignal, signal  # type: ignore[import-not-found]  # imports nothing

INTERRUPTED = 130


def leave(number: int, frame: object) -> None:
    """End the process at Ctrl-C while modules are imported: nothing has begun that would need an end."""
    os._exit(INTERRUPTED)


def main() -> None:
    """Run the command line. Starting makes much and drops nothing, and the end needs no memory: neither collects."""
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, leave)
    gc.set_threshold(100_000, 20, 20)
    from headscope.cli import main as run

    try:
        run()
    finally:
        gc.freeze()  # Python collects several times at exit: 15 of the 95 ms of `headscope shapes`


if __name__ == "__main__":
    main()
