"""What docs/extend.md builds: a method, a backbone, a partitioner, a dataset and a metric."""
