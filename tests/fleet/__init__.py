"""One job on several engines (hosts, containers, Slurm): is the epoch's digest everywhere that of one machine?"""
