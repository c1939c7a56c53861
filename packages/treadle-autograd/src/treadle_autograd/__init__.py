"""treadle-autograd"""
