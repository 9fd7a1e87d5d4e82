"""`retinanet launch tune`: the fastest allocation of hosts, ranks, threads and batches."""
