"""What elastic training is in every framework: the states that a job keeps, and the loop that
takes a training function through its generations."""
