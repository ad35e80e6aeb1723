"""The life of a run: device, lock, restore, loop, report; and pipelines of several runs."""
