//! The worker process: reading, decoding, transforms.
