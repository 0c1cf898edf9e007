"""The fused CPU kernels: finding and loading the native library, and describing votes to it."""
