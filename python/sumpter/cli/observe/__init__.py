"""The commands that show the jobs of a coordinator and change nothing unless asked to."""
