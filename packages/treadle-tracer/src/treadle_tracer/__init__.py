"""treadle-tracer"""
