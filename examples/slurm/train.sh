#!/bin/bash
# A coordinator and trainers as one heterogeneous job. It ends when the trainers have ended, with their exit code:
#
#     sbatch train.sh job.toml trainer-client train --feed file:///shared/.stoker/digits/endpoint …
#SBATCH --job-name=stoker-train
#SBATCH --ntasks=1 --cpus-per-task=1
#SBATCH hetjob
#SBATCH --ntasks=1
set -eu
job=$1
shift
loader-server index "$job"
srun --het-group=0 loader-server coordinator "$job" --listen tcp://0.0.0.0:* &
srun --het-group=1 --kill-on-bad-exit "$@"
