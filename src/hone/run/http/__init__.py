"""Parts of an HTTP service that every service of hone uses: the socket it listens on, histograms of latency."""
