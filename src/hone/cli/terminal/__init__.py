"""What a terminal shows while a command works: progress bars, plain lines without a TTY, streamed answers."""
