"""Training programs kept for later processes: what surrounds the two compiled halves, and the names under which the compilers have kept
the halves. A program that is found is not traced; its graphs are made when somebody asks for them."""
