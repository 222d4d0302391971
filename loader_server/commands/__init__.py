"""What the commands do; `arguments` has their options, and names the function that runs each."""
