"""What every package uses: errors, command lines, console, files, processes, charts."""
