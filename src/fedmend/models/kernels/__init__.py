"""Fast paths behind one interface, each tested equal to the plain one."""
