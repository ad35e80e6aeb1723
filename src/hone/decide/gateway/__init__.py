"""The gateway: a service that decides, logs, takes rewards and learns, in process and over HTTP."""
