"""The command `hone`, which writes each line of metrics at its step: a test that waits for a step sees it at once."""

import sys

from hone.cli.main import main
from hone.run import reporter

if __name__ == "__main__":
    reporter.WRITE_EVERY_S = 0.0
    sys.exit(main())
