//! Where batches go: host, later CUDA and Ascend.
