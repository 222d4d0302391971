#!/bin/bash
# Worker hosts for a job that is served elsewhere, each an array task of its own, so that each comes, dies and is requeued alone:
#
#     sbatch --array=1-8 workers.sh file:///shared/.stoker/digits/endpoint --keys keys
#
# All arguments are those of `loader-server run`.
#SBATCH --job-name=stoker-workers
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@60

# By exec, as Slurm's SIGTERM goes to this process, and the workers drain.
exec loader-server run "$@"
