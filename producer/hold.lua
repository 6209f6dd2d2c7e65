-- Pause or cancel a run, unless it is over. A cancelled run's keys expire like a complete one's; `resume` keeps them again.
-- KEYS state, then the other keys that live as long as the run; ARGV paused|cancelled finished_ttl_s
-- Returns the status before, '' if Redis does not know the run.
local status = redis.call('HGET', KEYS[1], 'status')
if not status then return '' end
if status ~= 'complete' and not (status == 'cancelled' and ARGV[1] == 'paused') then
  redis.call('HSET', KEYS[1], 'status', ARGV[1])
  if ARGV[1] == 'cancelled' then
    for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[2]) end
  end
end
return status
