"""The parts of the admission benchmark: the gates that are compared, their processes, and what is measured."""
