//! Workloads over RESP, histograms, checked load.
