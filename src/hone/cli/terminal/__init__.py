"""Terminal output of a running command: progress bars, plain lines without a TTY, streamed answers."""
