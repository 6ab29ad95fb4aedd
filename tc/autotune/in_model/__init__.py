"""What is the fastest inside a whole model: schedules of its kernels, and forms of its graph."""
