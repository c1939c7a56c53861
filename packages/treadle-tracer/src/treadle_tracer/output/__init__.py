"""What a trace leaves behind: the graph, the guards, the recorded mutations, and the code that stands in for the frame."""
