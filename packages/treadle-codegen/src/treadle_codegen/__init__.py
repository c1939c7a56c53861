"""treadle-codegen"""
