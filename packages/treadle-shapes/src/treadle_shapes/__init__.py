"""treadle-shapes"""
