"""OPENs of executables, on devices where an OPEN keeps EXEC from running anything else."""
