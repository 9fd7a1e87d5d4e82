"""What contestants do: each module's `prepare(workload, **options)` builds it, in a worker."""
