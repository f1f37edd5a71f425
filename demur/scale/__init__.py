"""Any number of inputs: read in fragments, from this machine or an object store, answered here or on a cluster, and
written as parquet parts that a run which was stopped goes on from."""
