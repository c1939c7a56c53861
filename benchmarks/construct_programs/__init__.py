"""Small programs, one per construct of Python and of PyTorch: every public function of these modules takes a float tensor of 2 x 3."""
