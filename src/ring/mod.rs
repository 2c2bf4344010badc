//! Segments, SPSC rings, doorbells and leases: shared memory made safe. Knows nothing else of ours.
