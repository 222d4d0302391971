#!/bin/bash
# Worker hosts for a job that is served elsewhere: tasks of an array, each of which comes, dies and is requeued alone.
# All arguments are those of `loader-server run`:
#
#     sbatch --array=1-8 workers.sh file:///shared/.stoker/digits/endpoint --keys keys
#
#SBATCH --job-name=stoker-workers
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@60

# By exec, so that SIGTERM ends the loaders in good order: sent to bash alone, it would wait for them instead.
exec loader-server run "$@"
