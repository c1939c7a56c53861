"""treadle"""
