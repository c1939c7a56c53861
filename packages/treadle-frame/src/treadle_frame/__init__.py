"""treadle-frame"""
