"""What is asked of workers, and what their answers mean. Pure; must not know connections."""
