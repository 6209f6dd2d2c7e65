-- Give a lease back before its end. With a cause, the batch is parked: it waits for a person, not for a worker.
-- KEYS lease owner pushed parked attempts; ARGV batch bit token cause 1|0 (an error of ours ended it)
-- Returns 1 if the lease was this worker's.
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[3] then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
if ARGV[5] == '1' then redis.call('HINCRBY', KEYS[5], ARGV[1] .. ':errors', 1) end
if ARGV[4] ~= '' then
  redis.call('SETBIT', KEYS[3], ARGV[2], 0)
  redis.call('HSET', KEYS[4], ARGV[1], ARGV[4])
end
return 1
