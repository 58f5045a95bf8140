"""Commands of the command line, a file for each kind. Nothing heavy is imported until one runs."""
