r"""Trains a net on any data set on several machines: this is one worker or ps of them.

python -m inception.distributed_train --dataset_name=NAME --data_dir=DIR --grad_bits=1 \
    --clip_factor=2.5 --worker_hosts=HOST1:2222,HOST2:2222 --task_id=0

With --ps_hosts the workers exchange through parameter servers, which run with --job_name=ps.
"""

from inception import programs

if __name__ == "__main__":
    programs.train_distributed("", __doc__)
