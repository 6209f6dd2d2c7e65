-- A prompt is in flight at the death of its engine or worker, or may be: change how often that is so.
-- KEYS done checkpoints; ARGV batch bit ttl_s change index…
if redis.call('GETBIT', KEYS[1], ARGV[2]) == 1 then return 0 end
for i = 5, #ARGV do
  local deaths = redis.call('HINCRBY', KEYS[2], 'd:' .. ARGV[i], ARGV[4])
  if deaths <= 0 then redis.call('HDEL', KEYS[2], 'd:' .. ARGV[i]) end
end
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 1
