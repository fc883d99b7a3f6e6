"""Takes weights and a configuration and returns a checkpoint folder, or a summary of one."""
