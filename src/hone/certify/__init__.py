"""The certificate of a run: its loss does not depend on micro-batches, order, packing or ranks."""
