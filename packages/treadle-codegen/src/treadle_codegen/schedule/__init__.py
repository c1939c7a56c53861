"""From a Program to kernels and memory: dependencies, fusion, places in one arena."""
