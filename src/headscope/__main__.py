"""Where the `headscope` command and `python -m headscope` begin."""

import gc


def main() -> None:
    """Run the command line. Starting makes much and drops nothing, so collecting garbage meanwhile would only cost."""
    gc.set_threshold(100_000, 20, 20)
    from headscope.cli import main as run

    run()


if __name__ == "__main__":
    main()
